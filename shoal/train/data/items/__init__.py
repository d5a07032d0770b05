"""Items of any form, as torch's Datasets give them: as columns, and back to items and batches."""
