"""Log lines: what libraries repeat is said once in a while."""

from __future__ import annotations

import logging

from streams.logs import REPEAT_AFTER_S, OnceInAWhile


def record(name: str, message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, arguments, None)


def test_a_message_is_let_through_once_in_a_while_whatever_its_arguments() -> None:
    now = 100.0
    once = OnceInAWhile(clock=lambda: now)
    assert once.filter(record("aiokafka", "no node %s", 1))
    assert not once.filter(record("aiokafka", "no node %s", 2))
    assert once.filter(record("aiokafka", "no topic %s", 2))
    assert once.filter(record("kafka", "no node %s", 1))
    now += REPEAT_AFTER_S
    assert once.filter(record("aiokafka", "no node %s", 3))
