"""A LightningModule at work in a lane, without a Trainer."""
