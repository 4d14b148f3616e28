"""Faults, processes, mounts, and the directory of a run."""

import errno
import os
import pwd
import shutil
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", f"{HERE}/target")
BUTTERFS = os.environ.get("BUTTERFS", f"{TARGET}/release/butterfs")


class Fault(Exception):
    """Something that a crash must not cause."""


class Lost(Fault):
    """Acknowledged work is not there."""


def run(*words, **more):
    """Runs a command. A failure is a fault with everything that it printed."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **more
    )
    if done.returncode != 0:
        raise Fault(f"{' '.join(words)} ({done.returncode}):\n{done.stdout[-4000:]}")
    return done.stdout


def user(name):
    """Arguments for a process of another user."""
    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


def wait_until(true, seconds, what):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise Fault(f"{what}: nothing after {seconds} s")
        time.sleep(0.005)


def ends(process, seconds):
    """Waits for a process of ours, and kills it if it does not end."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def tail(path):
    with open(path, encoding="utf-8", errors="replace") as text:
        return "".join(text.readlines()[-30:])


class Mount:
    """A ButterFS mount; its server is a child of this process."""

    def __init__(self, image, mountpoint, options, log):
        self.mountpoint = mountpoint
        options = ",".join(filter(None, ["allow_other", options]))
        with open(log, "ab") as out:
            self.server = subprocess.Popen(
                [BUTTERFS, "mount", "-f", "-o", options, image, mountpoint], stderr=out
            )
        wait_until(self.live, 60, "mount")

    def live(self):
        if self.server.poll() is not None:
            raise Fault(f"the mount failed with {self.server.returncode}; see the server's log")
        return is_mounted(self.mountpoint)

    def kill(self):
        if self.server.poll() is not None:
            raise Fault(f"the server ended by itself with {self.server.returncode}")
        self.server.kill()
        self.server.wait()
        try:
            # Attributes may come from a cache. This does not.
            os.statvfs(self.mountpoint)
            raise Fault("a mount without a server answers")
        except OSError as error:
            # The others: queues of io_uring take a moment to end.
            if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED):
                raise Fault(f"a mount without a server says {error}") from error

    def unmount(self):
        run(BUTTERFS, "umount", self.mountpoint)
        if not ends(self.server, 60) or self.server.returncode != 0:
            raise Fault(f"the server ended with {self.server.returncode} after umount")

    def leave(self):
        """Removes the mount, whatever state it is in."""
        self.server.kill()
        self.server.wait()
        if is_mounted(self.mountpoint):
            subprocess.run(["umount", "-l", self.mountpoint], check=False)


def is_mounted(path):
    """Looks into the kernel's list, because a mount without a server does not
    answer."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1] == path for line in mounts)


class Bench:
    """The directory of a run: images, mountpoints, logs."""

    def __init__(self):
        shm = "/dev/shm"
        self.top = tempfile.mkdtemp(prefix="butterfs-kill.", dir=shm if os.path.isdir(shm) else None)
        os.chmod(self.top, 0o755)
        self.round = f"{self.top}/round"
        self.mountpoint = f"{self.top}/mnt"
        os.mkdir(self.mountpoint)

    def new(self, name):
        return f"{self.round}/{name}"

    def keep(self, name):
        """Saves a failed round. Returns where."""
        kept = tempfile.mkdtemp(prefix=f"butterfs-kill-failed-{name}.", dir=os.path.dirname(self.top))
        for entry in os.listdir(self.round):
            shutil.move(f"{self.round}/{entry}", kept)
        return kept
