"""The FLOPs columns of the paper's ImageNet tables, as printed.

Each line: method | the method of the same cost | the distribution of its connections | multiple of the usual training
length | the printed figures. A letter marks a figure that the paper's own convention does not reproduce; `NOTES` in
`printed_and_counted` has the reason.
"""

RESNET_50 = """
Dense            | dense   | dense       | 1   | 3.2e18  | 8.2e9   |         |
Static           | static  | uniform     | 1   | 0.23x   | 0.23x   | 0.10x a | 0.10x a
SNIP             | snip    | uniform     | 1   | 0.23x   | 0.23x   | 0.10x a | 0.10x a
Small-Dense      | static  | small-dense | 1   | 0.20x b | 0.20x b | 0.12x   | 0.12x
SET              | set     | uniform     | 1   | 0.23x   | 0.23x   | 0.10x a | 0.10x a
RigL             | rigl    | uniform     | 1   | 0.23x   | 0.23x   | 0.10x a | 0.10x a
Small-Dense 5×   | static  | small-dense | 5   | 1.01x b | 0.20x b | 0.60x   | 0.12x
RigL 5×          | rigl    | uniform     | 5   | 1.14x   | 0.23x   | 0.52x a | 0.10x a
Static (ERK)     | static  | erk         | 1   | 0.42x   | 0.42x   | 0.24x   | 0.24x
DSR              | dsr     | dsr         | 1   | 0.40x   | 0.40x   | 0.30x   | 0.30x
RigL (ERK)       | rigl    | erk         | 1   | 0.42x   | 0.42x   | 0.25x   | 0.24x
RigL 5× (ERK)    | rigl    | erk         | 5   | 2.09x   | 0.42x   | 1.23x   | 0.24x
SNFS (ERK)       | snfs    | erk         | 1   | 0.61x   | 0.42x   | 0.50x   | 0.24x
Pruning          | pruning | uniform     | 1   | 0.56x   | 0.23x   | 0.51x   | 0.10x a
Pruning 1.5×     | pruning | uniform     | 1.5 | 0.84x   | 0.23x   | 0.76x   | 0.10x a
"""

RESNET_50_HIGH = """
Static           | static  | uniform     | 1   | 0.23x c | 0.08x   | 0.13x c | 0.07x
SNIP             | snip    | uniform     | 1   | 0.23x c | 0.08x   | 0.13x c | 0.07x
SET              | set     | uniform     | 1   | 0.23x c | 0.08x   | 0.13x c | 0.07x
RigL             | rigl    | uniform     | 1   | 0.23x c | 0.08x   | 0.13x c | 0.07x
RigL 5×          | rigl    | uniform     | 5   | 1.14x c | 0.08x   | 0.66x c | 0.07x
Static (ERK)     | static  | erk         | 1   | 0.42x c | 0.42x c | 0.24x c | 0.24x c
RigL (ERK)       | rigl    | erk         | 1   | 0.42x c | 0.12x   | 0.25x c | 0.11x d
RigL 5× (ERK)    | rigl    | erk         | 5   | 2.09x c | 0.12x   | 1.23x c | 0.11x d
SNFS (ERK)       | snfs    | erk         | 1   | 0.61x c | 0.12x   | 0.50x c | 0.11x d
Pruning          | pruning | uniform     | 1   | 0.56x c | 0.08x   | 0.51x c | 0.07x
Pruning 1.5×     | pruning | uniform     | 1.5 | 0.84x c | 0.08x   | 0.76x c | 0.07x
"""

LOTTERY = """
Lottery, Static  | lottery      | uniform | 1   | 0.46x e |
Lottery, RigL    | lottery-rigl | uniform | 1   | 0.46x   |
Random, RigL     | rigl         | uniform | 1   | 0.23x   |
Random, RigL 2×  | rigl         | uniform | 2   | 0.46x   |
"""

MOBILENET = """
Dense            | dense   | dense          | 1 |         | 1.1e9   |         |
Small-Dense 5×   | static  | small-dense    | 5 |         | 0.23x   |         | 0.09x
Pruning (Zhu)    | pruning | uniform        | 1 |         | 0.27x f |         | 0.12x f
RigL 5×          | rigl    | uniform        | 5 |         | 0.27x f |         | 0.12x f
RigL 5× (ERK)    | rigl    | erk            | 5 |         | 0.52x   |         | 0.27x f
Big-Sparse 5×    | rigl    | big uniform    | 5 |         | 0.98x g |         |
Big-Sparse (ERK) | rigl    | big erk        | 5 |         | 1.91x f |         |
"""
