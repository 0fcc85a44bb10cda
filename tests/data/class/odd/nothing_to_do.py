"""Bubble sort and a linked list, week 2."""


def bubble_sort(xs):
    xs = list(xs)
    for i in range(len(xs)):
        for j in range(len(xs) - 1 - i):
            if xs[j] > xs[j + 1]:
                xs[j], xs[j + 1] = xs[j + 1], xs[j]
    return xs


class Node:
    def __init__(self, value, nxt=None):
        self.value = value
        self.next = nxt
