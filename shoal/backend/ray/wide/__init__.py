"""Gangs over several slots: their lanes, who makes their units, what slots that go cost them."""
