"""The stores: implementations of the contract in `holdfast.store`."""
