"""Words of libraries and of Python that no message to a user may have."""

from __future__ import annotations

import re

INTERNAL = re.compile(
    r"[Ii]nput should|should (match|be|have)|valid (string|integer|number|boolean|list|dict)|"
    r"errors\.pydantic|type=|input_value|\[key\]|by_name|by_target|Value error|validation error|"
    r"function-|tagged-union|\bNone\b|\bTrue\b|\bFalse\b|\['|Traceback|Errno"
)
