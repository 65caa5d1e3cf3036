"""Program of the process that captures patches (``capture_process.py``)."""

import sys

from runners.tasks.capture_process import serve
from runners.tasks.patch import answer_request

if __name__ == "__main__":
    serve(answer_request, int(sys.argv[1]))
