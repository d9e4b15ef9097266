"""The official SDK, or one line that says how to install it: users have no need of it otherwise."""

try:
    import anthropic
except ImportError:
    raise SystemExit("this tool needs the official SDK: pip install 'anthropic>=2.14'") from None

__all__ = ["anthropic"]
