"""dbench on a mount."""

import os
import shutil
import signal
import subprocess

from killing.harness import Fault, wait_until
from killing.workload import Workload


class Dbench(Workload):
    """A file server's load; every name can be removed afterwards."""

    name = "dbench"
    needs = ["dbench"]
    acknowledges = False
    seconds = 2.0
    flags = [[], ["--fsync"], ["--sync"], ["--sync-dir"]]

    def start(self, mount):
        flags = self.flags[self.number % len(self.flags)]
        load = ["-c", "/usr/share/dbench/client.txt", "-D", mount, "-t", "600", *flags, "4"]
        with open(self.bench.new("dbench.log"), "wb") as out:
            self.dbench = subprocess.Popen(["dbench", *load], stdout=out, stderr=out, start_new_session=True)
        wait_until(lambda: os.path.exists(f"{mount}/clients/client1"), 60, "dbench")

    def running(self):
        return self.dbench.poll() is None

    def stop(self):
        try:
            os.killpg(self.dbench.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.dbench.wait()

    def verify(self, mount):
        for directory, _, names in os.walk(f"{mount}/clients"):
            for name in names:
                with open(f"{directory}/{name}", "rb") as file:
                    while file.read(1 << 20):
                        pass
        for name in os.listdir(mount):
            shutil.rmtree(f"{mount}/{name}")
        if os.listdir(mount):
            raise Fault("something stays after everything was removed")
        return 0
