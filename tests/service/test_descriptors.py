import resource

from service.descriptors import allow_descriptors


def test_a_full_queue_may_have_its_connections_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        allow_descriptors(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
