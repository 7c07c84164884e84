"""Bodies on their way in by APPEND and out by FETCH and SEARCH."""
