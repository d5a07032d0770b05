"""Policies that put several models on one slot: Pack (Liu et al., 2020)."""
