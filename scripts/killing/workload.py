"""The interface between the harness and a program on a mount."""

import multiprocessing
import os
import sqlite3
import subprocess

from killing.harness import Fault


class Acknowledged:
    """What the clients were told is durable: one file of numbers for each."""

    def __init__(self, directory, mountpoint):
        self.directory = directory
        self.mountpoint = mountpoint
        os.makedirs(directory)

    def say(self, client, text):
        """Notes an acknowledgement. Fails when the server is gone, because
        programs do not report all errors: SQLite goes on if it cannot open a
        directory to make the removal of a journal durable."""
        os.statvfs(self.mountpoint)
        path = f"{self.directory}/{client}"
        out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(out, f"{text}\n".encode())
        os.close(out)

    def of(self, client):
        try:
            with open(f"{self.directory}/{client}", encoding="utf-8") as lines:
                return lines.read().split()
        except FileNotFoundError:
            return []

    def count(self):
        return sum(len(self.of(client)) for client in os.listdir(self.directory))


class Workload:
    """A program on a mount. `base` fills a volume once. `start` begins to
    work. `stop` ends what is left after the kill. `verify` recovers and
    judges, and returns the number of acknowledgements that it checked."""

    name = ""
    needs = []
    acknowledges = True
    # Longest time until the kill, counted from the first acknowledgement.
    seconds = 1.0
    has_base = False
    kernel_verifies = False

    def __init__(self, bench, seed, number):
        self.bench = bench
        self.seed = seed
        self.number = number
        self.acknowledged = Acknowledged(bench.new("acknowledged"), bench.mountpoint)
        self.children = []

    def base(self, mount):
        pass

    def work(self, *of):
        """Runs a function beside this process."""
        child = multiprocessing.get_context("fork").Process(target=quiet, args=of)
        child.start()
        self.children.append(child)

    def stop(self):
        for child in self.children:
            child.join(10)
            if child.is_alive():
                child.kill()
                child.join()

    def running(self):
        return any(child.is_alive() for child in self.children)


def quiet(work, *of):
    """Runs work, and ignores the errors of a mount that goes away."""
    try:
        work(*of)
    except (OSError, sqlite3.Error, subprocess.SubprocessError, Fault):
        pass
