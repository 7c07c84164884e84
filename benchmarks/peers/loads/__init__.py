"""What pairs are given to do, a module for each kind of load. They know pairs by their interface only."""
