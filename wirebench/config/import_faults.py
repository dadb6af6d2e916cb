"""Where the import of a plugin failed, in one line: it may be a user's own module, and its mistakes the user's."""

import traceback


def fault(error: ImportError | SyntaxError) -> str:
    """The file, the line and what is wrong there."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    # The import system's own frames have no file.
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return where + (str(error).splitlines() or [type(error).__name__])[0]
