"""Networks of other packages, by a prefix and their name there: timm:NAME, torchvision:NAME, hf:NAME."""
