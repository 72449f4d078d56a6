"""Work in several processes that die with this one: a task in, a result or an error out."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from sparsekit.check.allotment import Allotment
from sparsekit.errors import SparsekitError
from sparsekit.settings import children_of_one_thread

T = TypeVar("T")
R = TypeVar("R")
Setup = Callable[..., Callable[[Any], Any]]


class WorkerError(SparsekitError):
    """A worker process ended, or a task failed in it in a way that is a fault of ours."""


def run_in_processes(
    setup: Setup, arguments: tuple[Any, ...], tasks: Sequence[T], count: int,
    kind_of: Callable[[T], Hashable] = lambda task: None,
) -> Iterator[tuple[T, Any]]:  # fmt: skip
    """(task, result) as they come, tasks of a kind started in order.

    kind_of: what tasks share that a process prepares once, so that one process does them.

    setup(*arguments) makes the function that does tasks, once in each of `count` processes; all
    must be importable by name or plain data. Raises what a task raises, if it is a SparsekitError,
    else WorkerError; the processes are ended then, and when the iteration is left early.
    """
    left = Allotment(tasks, kind_of)
    running: dict[Connection, int] = {}
    context = multiprocessing.get_context("spawn")
    processes = []
    try:
        for _ in range(min(count, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, setup, arguments), daemon=True)
            with children_of_one_thread():
                process.start()
            processes.append(process)
            theirs.close()
            number = left.next(ours)
            assert number is not None
            running[ours] = number
            ours.send(tasks[number])
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                number = running.pop(connection)
                yield tasks[number], _received(connection, tasks[number])
                following = left.next(connection)
                if following is not None:
                    running[connection] = following
                    connection.send(tasks[following])
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _received(connection: Connection, task: Any) -> Any:
    try:
        ok, value = connection.recv()
    except (EOFError, OSError) as error:
        raise WorkerError(f"the process that did {task} died; is there enough memory?") from error
    if ok:
        return value
    raise value


def _serve(connection: Connection, setup: Setup, arguments: tuple[Any, ...]) -> None:
    """Do tasks until the other end is closed, which the parent's death does too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    work: Callable[[Any], Any] | None = None
    while True:
        task = received.get()
        try:
            if work is None:
                work = setup(*arguments)
            answer: tuple[bool, Any] = (True, work(task))
        except Exception as error:
            answer = (False, _portable(error))
        connection.send(answer)


def _receive(connection: Connection, received: queue.SimpleQueue[Any]) -> None:
    """Hand over the tasks; their end is the parent's, whatever is being done then."""
    while True:
        try:
            received.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _portable(error: Exception) -> Exception:
    """The error itself where it survives the way to another process, else its text."""
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        again = None
    if isinstance(error, SparsekitError) and type(again) is type(error):
        return error
    return WorkerError(f"{type(error).__name__}: {error}")
