import time
from typing import Any

from sqlalchemy import ColumnElement, Double, bindparam
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

_MINE = bindparam("clock", callable_=lambda: time.time(), type_=Double)


class _Now(FunctionElement[float]):
    type: TypeEngine[float] = Double()
    inherit_cache = True


# For statements: the time in unix seconds, the same wherever it stands in one statement. Of a
# database that machines share it is the server's, so that their leases agree though their clocks
# do not.
NOW: ColumnElement[float] = _Now()


@compiles(_Now)
def _this_process(_element: _Now, compiler: Any, **how: Any) -> str:
    return compiler.process(_MINE, **how)


@compiles(_Now, "postgresql")
def _the_server(_element: _Now, _compiler: Any, **_: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS DOUBLE PRECISION)"
