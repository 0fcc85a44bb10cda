"""The checker: somebody's attention, taken as a black box, is held against what it should be."""
