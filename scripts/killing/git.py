"""Git on a mount."""

import glob
import os
import random

from killing.harness import Lost, run, wait_until
from killing.workload import Workload


class Git(Workload):
    """Commits and checkouts of a work tree. Git makes the content of its
    files durable, not their names: that takes an fsync of each directory."""

    name = "git"
    needs = ["git"]
    seconds = 2.0
    kernel_verifies = True

    def git(self, mount, *words):
        settings = "core.fsync=all core.fsyncMethod=fsync gc.auto=0 user.name=k user.email=k@k"
        settings = [word for setting in settings.split() for word in ("-c", setting)]
        directory = f"{mount}/tree"
        safe = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        return run("git", *settings, "-C", directory, *words, env={**os.environ, **safe})

    def start(self, mount):
        self.work(self.client, mount)
        wait_until(lambda: self.acknowledged.of("git"), 60, "git")

    def client(self, mount):
        tree = f"{mount}/tree"
        os.mkdir(tree)
        self.git(mount, "init", "-q", "-b", "main")
        synced_files(f"{tree}/.git")
        rng = random.Random(f"{self.seed} git")
        known, commits = {}, []
        while True:
            for _ in range(12):
                path = f"{tree}/{rng.randrange(6)}/{rng.randrange(4)}/{rng.randrange(10)}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as out:
                    out.write(rng.randbytes(rng.randrange(200)) * rng.randrange(1, 200))
            self.git(mount, "add", "-A")
            self.git(mount, "commit", "-q", "-m", str(len(commits)))
            commits.append(self.git(mount, "rev-parse", "HEAD").strip())
            synced_directories(f"{tree}/.git", known)
            self.acknowledged.say("git", commits[-1])
            self.git(mount, "checkout", "-q", rng.choice(commits))
            self.git(mount, "checkout", "-q", "main")

    def verify(self, mount):
        # A killed git leaves its locks, which the user has to remove.
        for lock in glob.glob(f"{mount}/tree/.git/**/*.lock", recursive=True):
            os.unlink(lock)
        self.git(mount, "fsck", "--full")
        there = set(self.git(mount, "rev-list", "main").split())
        told = self.acknowledged.of("git")
        lost = [commit for commit in told if commit not in there]
        if lost:
            raise Lost(f"{len(lost)} of {len(told)} acknowledged commits are not there")
        self.git(mount, "checkout", "-q", "-f", "main")
        self.git(mount, "diff", "--quiet", "HEAD")
        return len(told)


def synced_files(top):
    """Makes the content of files durable: `git init` writes HEAD without an
    fsync, and a name without its content is no repository."""
    for directory, _, files in os.walk(top):
        for name in files:
            with open(f"{directory}/{name}", "rb") as file:
                os.fsync(file.fileno())


def synced_directories(top, known):
    """Makes names durable: fsync of each directory that changed."""

    def give_up(error):
        raise error

    for directory, _, _ in os.walk(top, topdown=False, onerror=give_up):
        changed = os.stat(directory).st_mtime_ns
        if known.get(directory) == changed:
            continue
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(opened)
        os.close(opened)
        known[directory] = changed
