"""The only place with side effects, and the only owner of time: `sim`, `local`, `ray`."""
