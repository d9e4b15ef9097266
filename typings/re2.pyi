# What is used here of google-re2, which brings no types of its own.

class error(Exception): ...

class Options:
    case_sensitive: bool
    log_errors: bool
    never_capture: bool
    max_mem: int

class _Regexp:
    def search(self, text: str) -> object | None: ...

def compile(pattern: str, options: Options) -> _Regexp: ...
