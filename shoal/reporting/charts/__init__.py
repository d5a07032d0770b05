"""The report's drawings as plain plotly figures.

The facts they draw come from `shoal.reporting.facts`.
"""
