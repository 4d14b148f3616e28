"""Transactions of the databases. Each inserts some rows, deletes those of an
old transaction and counts itself. So the number of a client's transactions
determines its rows."""

import hashlib

from killing.harness import Fault, Lost

# Transactions that a client keeps.
KEPT = 40
SCHEMA = [
    "create table entries(client integer, number integer, part integer, body text,"
    " primary key(client, number, part))",
    "create table clients(client integer primary key, last integer)",
]


def rows(seed, client, number):
    digest = hashlib.sha256(f"{seed} {client} {number}".encode()).hexdigest()
    size = int(digest[:4], 16) % 6000
    for part in range(1 + int(digest[4], 16) % 4):
        yield part, (f"{part}{digest}" * (size // 65 + 1))[: size + part]


def transaction(seed, client, number):
    yield "begin"
    for part, body in rows(seed, client, number):
        yield f"insert into entries values({client}, {number}, {part}, '{body}')"
    yield f"delete from entries where client = {client} and number <= {number - KEPT}"
    yield f"update clients set last = {number} where client = {client}"
    yield "commit"


def judge_transactions(seed, client, acknowledged, last, found):
    """The rows of a client, as (number, part, body), must be those of whole
    transactions: all acknowledged ones, and at most the one under way."""
    told = int(acknowledged[-1]) if acknowledged else 0
    if last < told:
        raise Lost(f"client {client}: {told} transactions were acknowledged, {last} are there")
    if last > told + 1:
        raise Fault(f"client {client}: {told} transactions were acknowledged, but {last} are there")
    expected = [
        (number, part, body)
        for number in range(max(1, last - KEPT + 1), last + 1)
        for part, body in rows(seed, client, number)
    ]
    if sorted(found) != expected:
        raise Fault(f"client {client}: the rows of {last} transactions differ")
    return told
