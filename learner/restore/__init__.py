"What a run holds besides weights: found, noted, and put back"
