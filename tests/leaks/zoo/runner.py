"""Runs what it is given, from a module and a class of its own."""


class Runner:
    def __init__(self, work):
        self.work = work

    def run(self):
        return self.work()
