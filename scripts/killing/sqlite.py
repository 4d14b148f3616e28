"""SQLite on a mount."""

import sqlite3

from killing.harness import Fault, wait_until
from killing.transactions import SCHEMA, judge_transactions, transaction
from killing.workload import Workload


class Sqlite(Workload):
    """Two databases at once: a rollback journal and a write-ahead log."""

    name = "sqlite"
    kernel_verifies = True
    clients = {1: ["delete", "truncate", "persist"], 2: ["wal"]}

    def journal(self, client):
        modes = self.clients[client]
        return modes[self.number // 2 % len(modes)]

    def start(self, mount):
        for client in self.clients:
            self.work(self.client, client, f"{mount}/{client}.db")
        wait_until(lambda: all(map(self.acknowledged.of, self.clients)), 60, "sqlite")

    def client(self, client, path):
        database = sqlite3.connect(path, isolation_level=None)
        database.execute(f"pragma journal_mode = {self.journal(client)}")
        # Full, and the directory too: a rollback journal's removal commits.
        database.execute("pragma synchronous = extra")
        database.execute("pragma wal_autocheckpoint = 50")
        for statement in SCHEMA:
            database.execute(statement)
        database.execute(f"insert into clients values({client}, 0)")
        self.acknowledged.say(client, 0)
        number = 0
        while True:
            number += 1
            for statement in transaction(self.seed, client, number):
                database.execute(statement)
            self.acknowledged.say(client, number)

    def verify(self, mount):
        told = 0
        for client in self.clients:
            database = sqlite3.connect(f"{mount}/{client}.db")
            try:
                if database.execute("pragma integrity_check").fetchall() != [("ok",)]:
                    raise Fault(f"client {client} ({self.journal(client)}): integrity_check")
                (last,) = database.execute("select last from clients").fetchone()
                found = database.execute("select number, part, body from entries").fetchall()
            except sqlite3.Error as error:
                raise Fault(f"client {client} ({self.journal(client)}): {error}") from error
            finally:
                database.close()
            told += judge_transactions(self.seed, client, self.acknowledged.of(client), last, found)
        return told
