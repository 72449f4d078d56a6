"""The compile worker: `python -m sparsekit.aot.worker ANSWER_FD FOLDER`, one per toolchain and
option set. FOLDER, which must not exist, is its own for temporary files, and goes with it.

One JSON request a line on standard input, one JSON answer a line on the descriptor, each with the
key of the request. Standard output and error are one file of the parent's: what compilers print
can never mix with an answer, and the parent still has it when this process dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from sparsekit.aot.closure import read_source
from sparsekit.errors import CompileError, SparsekitError, SpecError, StoreError, ToolchainError
from sparsekit.model.artifact import SourceFile

KINDS: dict[str, type[SparsekitError]] = {
    "compile": CompileError, "toolchain": ToolchainError, "spec": SpecError, "store": StoreError,
}  # fmt: skip
_STDOUT = 1
# What removes the folder must outlive who writes there.
_END = 'kill -9 "$1"; exec rm -rf -- "$2"'


def take_printed() -> str:
    """What was printed since the last call."""
    sys.stdout.flush()
    sys.stderr.flush()
    text = os.pread(_STDOUT, os.fstat(_STDOUT).st_size, 0).decode(errors="replace")
    os.ftruncate(_STDOUT, 0)
    return text


def main() -> NoReturn:
    os.mkdir(sys.argv[2], 0o700)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, sys.argv[2]), daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as answers:
        while True:
            line = requests.get()
            started = time.perf_counter()
            request = json.loads(line)
            answer = {"key": request["key"], **_answer(request)}
            answer["seconds"] = round(time.perf_counter() - started, 3)
            with contextlib.suppress(BrokenPipeError):  # the parent is dead: `_receive` ends this
                answers.write(json.dumps(answer) + "\n")


def _receive(requests: queue.SimpleQueue[str], folder: str) -> None:
    """Hand over the requests; their end is the parent's, whatever is being compiled then."""
    for line in sys.stdin:
        requests.put(line)
    # With an assembler that runs, which is ours too, when the group is: else this process alone.
    ours = f"-{os.getpid()}" if os.getpgrp() == os.getpid() else f"{os.getpid()}"
    subprocess.run(["/bin/sh", "-c", _END, "sh", ours, folder], start_new_session=True)
    os._exit(0)  # where there is no shell


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": True, **_compile(request)}
    except SparsekitError as error:
        kind = next((name for name, k in KINDS.items() if isinstance(error, k)), "compile")
        return {"ok": False, "kind": kind, "message": str(error)}
    except OSError as error:
        return {
            "ok": False,
            "kind": "store",
            "message": f"cannot write the compiled files: {error}",
        }
    except Exception:
        return {"ok": False, "kind": "compile", "message": traceback.format_exc(limit=-3)}


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    job, stage = request["job"], Path(request["stage"])
    sources = [SourceFile(n, Path(p), s) for n, p, s in request["sources"]]
    contents = {file.name: read_source(file) for file in sources}
    if job["lang"] == "cuda":
        from sparsekit.aot.nvrtc import loaded_nvrtc

        nvrtc = loaded_nvrtc(request["library"])
        record = nvrtc.compile(job, contents, request["include"], stage)
    else:
        from sparsekit.aot.triton_aot import compile_job

        files = [(file.path, file.name, contents[file.name]) for file in sources]
        record = compile_job(job, files, stage, take_printed)
    return {**record, "entries": [asdict(entry) for entry in record["entries"]]}


if __name__ == "__main__":
    main()
