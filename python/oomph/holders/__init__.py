"""Who holds an object: names, containers and frames, from it outwards."""
