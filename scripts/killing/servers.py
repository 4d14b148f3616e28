"""PostgreSQL and MariaDB on a mount."""

import glob
import os
import shutil
import signal
import subprocess
import threading

from killing.harness import Fault, ends, run, tail, user, wait_until
from killing.transactions import SCHEMA, judge_transactions, transaction
from killing.workload import Workload, quiet

# Where Debian keeps servers; the newest PostgreSQL.
os.environ["PATH"] += ":/usr/sbin:" + ":".join(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1:])


class Server(Workload):
    """A database server with three clients, whose data directory is made once
    and copied for each round."""

    seconds = 1.2
    has_base = True
    clients = [1, 2, 3]
    user = ""

    def __init__(self, bench, seed, number):
        super().__init__(bench, seed, number)
        self.server = None
        self.sessions = []
        self.socket = f"{bench.top}/socket"
        os.makedirs(self.socket, exist_ok=True)
        os.chmod(self.socket, 0o777)
        self.output = f"{bench.round}/{self.name}.log"

    def directory(self, mount):
        return f"{mount}/data"

    def spawn(self, *words):
        with open(self.output, "ab") as out:
            self.server = subprocess.Popen(words, stdout=out, stderr=out, cwd="/", **user(self.user))

        def answers():
            if self.server.poll() is not None:
                raise Fault(f"{self.name} does not start; {tail(self.output)}")
            try:
                return self.ask("select 1") == ["1"]
            except Fault:
                return False

        wait_until(answers, 60, self.name)

    def ask(self, question):
        return run(*self.shell(), input=f"{question};\n").splitlines()

    def base(self, mount):
        directory = self.directory(mount)
        os.mkdir(directory)
        shutil.chown(directory, self.user)
        os.chmod(directory, 0o700)
        self.make(directory)
        self.serve(directory)
        try:
            for statement in SCHEMA:
                self.ask(statement)
            for client in self.clients:
                self.ask(f"insert into clients values({client}, 0)")
            self.shut_down()
        finally:
            self.stop()

    def start(self, mount):
        self.serve(self.directory(mount))
        for client in self.clients:
            session = subprocess.Popen(
                self.shell(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            thread = threading.Thread(target=quiet, args=(self.client, client, session))
            thread.start()
            self.sessions.append((session, thread))
        wait_until(lambda: any(map(self.acknowledged.of, self.clients)), 60, self.name)

    def client(self, client, session):
        number = 0
        while True:
            number += 1
            for statement in transaction(self.seed, client, number):
                session.stdin.write(f"{statement};\n")
            # The shell ends at an error, so this line means that the commit worked.
            session.stdin.write(f"select 'committed {number}';\n")
            session.stdin.flush()
            if session.stdout.readline() != f"committed {number}\n":
                return
            self.acknowledged.say(client, number)

    def running(self):
        return self.server.poll() is None and any(thread.is_alive() for _, thread in self.sessions)

    def stop(self):
        for session, _ in self.sessions:
            session.kill()
            session.wait()
        for _, thread in self.sessions:
            thread.join()
        self.sessions = []
        if self.server:
            # PostgreSQL ends its children at a SIGQUIT, and leaves them at a
            # SIGKILL.
            self.server.send_signal(signal.SIGQUIT if self.name == "postgresql" else signal.SIGKILL)
            ends(self.server, 20)

    def verify(self, mount):
        try:
            self.serve(self.directory(mount))
            told = 0
            for client in self.clients:
                last = int(self.ask(f"select last from clients where client = {client}")[0])
                found = self.ask(f"select number, part, body from entries where client = {client}")
                found = [tuple(row.replace("|", "\t").split("\t")) for row in found]
                found = [(int(number), int(part), body) for number, part, body in found]
                acknowledged = self.acknowledged.of(client)
                told += judge_transactions(self.seed, client, acknowledged, last, found)
            self.judge()
            self.shut_down()
            self.judge_files(self.directory(mount))
        finally:
            self.stop()
        return told

    def judge_files(self, directory):
        pass


class PostgreSql(Server):
    """Small segments of its log are recycled, checkpoints come often."""

    name = "postgresql"
    needs = ["postgres", "initdb", "pg_amcheck"]
    user = "postgres"

    def shell(self):
        options = "-X -q -A -t -v ON_ERROR_STOP=1 -U postgres -d postgres -h".split()
        # A pipe would be buffered.
        return ["stdbuf", "-oL", "psql", *options, self.socket]

    def make(self, directory):
        options = "--auth=trust --username=postgres --data-checksums --wal-segsize=1 --no-locale"
        run("initdb", *options.split(), "-D", directory, cwd="/", **user(self.user))

    def serve(self, directory):
        settings = {
            "fsync": "on",
            "listen_addresses": "",
            "unix_socket_directories": self.socket,
            "shared_buffers": "4MB",
            "max_wal_size": "4MB",
            "min_wal_size": "2MB",
            "wal_sync_method": ["fdatasync", "open_datasync"][self.number // 2 % 2],
        }
        settings = [f"--{name}={value}" for name, value in settings.items()]
        self.spawn("postgres", "-D", directory, *settings)

    def judge(self):
        options = "--heapallindexed --install-missing -t entries -t clients -U postgres -h".split()
        run("pg_amcheck", *options, self.socket, "postgres")

    def shut_down(self):
        self.server.send_signal(signal.SIGINT)
        if not ends(self.server, 60) or self.server.returncode != 0:
            raise Fault(f"postgres ended with {self.server.returncode}; {tail(self.output)}")

    def judge_files(self, directory):
        run("pg_checksums", "--check", "-D", directory, cwd="/", **user(self.user))


class MariaDb(Server):
    """InnoDB with a log of 4 MiB."""

    name = "mariadb"
    needs = ["mariadbd", "mariadb-install-db"]
    user = "nobody"

    def shell(self):
        # Unbuffered, without names of columns.
        return ["mariadb", "--no-defaults", "-n", "-N", "-B", "-u", "root", "-S", f"{self.socket}/m", "test"]

    def make(self, directory):
        run(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={directory}",
            f"--user={self.user}",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
            "--innodb-log-file-size=4M",
        )

    def serve(self, directory):
        settings = {
            "datadir": directory,
            "socket": f"{self.socket}/m",
            "pid-file": f"{self.socket}/m.pid",
            "tmpdir": self.socket,
            "innodb-flush-log-at-trx-commit": 1,
            "innodb-log-file-size": "4M",
            "innodb-buffer-pool-size": "8M",
            "innodb-flush-method": ["O_DIRECT", "fsync"][self.number // 2 % 2],
        }
        settings = [f"--{name}={value}" for name, value in settings.items()]
        # MariaDB 10.11 may write a checkpoint that counts pages which it wrote
        # after its fsync (docs/evidence/kill.md). With this attribute a page is
        # durable when its write ends.
        files = [f"{directory}/ibdata1", *glob.glob(f"{directory}/*/*.ibd")]
        run("chattr", "+S", *files)
        self.spawn("mariadbd", "--no-defaults", "--skip-networking", *settings)

    def judge(self):
        for table in ("entries", "clients"):
            said = self.ask(f"check table {table} extended")
            if not said[-1].endswith("\tOK"):
                raise Fault(f"check table: {said}")

    def shut_down(self):
        self.server.send_signal(signal.SIGTERM)
        if not ends(self.server, 60) or self.server.returncode != 0:
            raise Fault(f"mariadbd ended with {self.server.returncode}; {tail(self.output)}")
