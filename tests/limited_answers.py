"""Answers of a helper process of the tests."""

import os
import time


def answer(request):
    name, value = request
    return ACTIONS[name](value)


def compute(_):
    while True:
        pass


def raises(text):
    raise ValueError(text)


def opened(path):
    with open(path) as file:
        return file.read()


def piped(_):
    return os.pipe()


ACTIONS = {
    "echo": lambda value: value,
    "process": lambda _: os.getpid(),
    "compute": compute,
    "sleep": time.sleep,
    "allocate": lambda size: len(bytearray(size)),
    "open": opened,
    "pipe": piped,
    "end": os._exit,
    "raise": raises,
    "write": lambda text: os.write(1, text.encode()),
}
