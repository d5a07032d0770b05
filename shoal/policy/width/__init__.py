"""Policies that choose how many slots a trial has.

After Capes et al. (2019) and FLEET (Guan et al., 2020).
"""
