"""`shoal harvest`: a study on the nodes of a batch system that stand idle."""
