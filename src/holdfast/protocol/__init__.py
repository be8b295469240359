"""The values that surfaces serve and clients parse, each defined once. Times are milliseconds since 1970.

A client ignores fields that a newer server adds. A field that is added to a published type has a default, so that a
newer client reads an older server.
"""
