"""What an exchange costs: by formulas, by plans, by requests; and the fit of link speeds to measurements.

May import exchange, record and all below.
"""
