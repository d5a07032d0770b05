"""What commands do beyond a study: forecasts, profiles, packs by hand, arguments."""
