"""The viewer: a Run walked through in a browser, from the whole map of a head down to one weight.

codes      weights as 16-bit codes, in equal steps of their logarithm
pyramid    one head's map pooled at every zoom, and what keeps it within a budget of bytes
places     what a Run offers to the page
jobs       work in the background: shared, watched, and given up when nobody waits for it
endpoints  the addresses under /api, and what they refuse
server     who may ask, and the server's beginning and end
web/       the page itself
"""
