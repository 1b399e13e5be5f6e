create schema if not exists holdfast;

{bookkeeping};
