"""What the fuzz targets share: mutators that know the formats, outcomes, and the loop around them."""
