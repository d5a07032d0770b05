"""One lane on several slots: data-parallel, in a group of processes that changes as it trains."""
