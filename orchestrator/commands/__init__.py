"""The commands of `depthrate`: a file a verb, named as the verb is, and what several of them share."""
