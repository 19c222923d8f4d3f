"""The stage `bench`: what a model costs and how long it takes, against others."""
