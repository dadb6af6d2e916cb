"""What an exchange costs: formulas, plans, requests, and the fit of link speeds.

May import exchange, record and all below.
"""
