"""The builder behind `make book`: run the chapters, keep their outputs, make the pages.

canon     what a notebook in git looks like
toc       which chapters there are, in reading order
keys      what makes a kept result stale
execute   run a notebook, cell by cell, and keep what it shows
progress  what the terminal says meanwhile
stage     the sources with their outputs, as Jupyter Book gets them
build     all of it, one step after another; the last good pages stay until new ones are complete
"""
