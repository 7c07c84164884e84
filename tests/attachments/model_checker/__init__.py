"""A model checker that runs the store's algorithms in every order of their steps, with every possible death."""
