"""Where these tests train: on the CPU, or on the device that SHOAL_TEST_DEVICE names ("cuda")."""

import os

import torch

HERE = torch.device(os.environ.get("SHOAL_TEST_DEVICE", "cpu"))
