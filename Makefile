# Every target is a command of scripts/make.py; extra arguments go in ARGS, as in: make test ARGS="-k claim -x"
PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help setup demo test crash check matrix bench format clean

help setup demo test crash check matrix bench format clean:
	@$(PYTHON) scripts/make.py $@ $(ARGS)
