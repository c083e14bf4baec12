"""Entries of weak dictionaries go whenever garbage is collected: also while a search reads them"""
import gc
from weakref import WeakValueDictionary
import pytest,torch
from learner.data.search import search

class Node:
    "Refers to itself, so that the collector alone frees it"
    def __init__(self): self.me = self

class Name(str):
    "Whoever reads this name collects garbage"
    def __format__(self, spec): gc.collect(0); return str(self)

@pytest.fixture
def no_gc():
    gc.disable()
    yield
    gc.enable()

def test_a_search_outlives_entries_that_go_meanwhile(no_gc):
    table,kept = WeakValueDictionary(),Node()
    for i in range(20): table[Name(i)] = kept if i in (0,19) else Node()
    kept.rng = torch.Generator()
    found = search({'table': table, 'kept': kept}, lambda cls: issubclass(cls, torch.Generator))
    assert found=={'kept.rng': kept.rng} and len(table)==2
