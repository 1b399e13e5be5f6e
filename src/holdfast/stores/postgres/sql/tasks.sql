select definition, revision, published_at from holdfast.tasks order by name
