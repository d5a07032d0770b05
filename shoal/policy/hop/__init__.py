"""Policies that move models between data shards: Cerebro's model hopping.

Nakandala et al., "Cerebro: A Data System for Optimized Deep Learning Model Selection", VLDB 2020.
"""
