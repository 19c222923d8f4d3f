"""Research on top of the pipeline: grids and comparisons of runs, Pareto plots, landscapes, published figures."""
